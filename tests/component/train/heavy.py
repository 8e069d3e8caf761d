"""What the fork server of the trainer's tests imports once, so that ranks start in a second. Imported by nobody else."""

import ciuic_trainer.train.loop
from ciuic_trainer.train.engine import preload

preload()
assert ciuic_trainer.train.loop
