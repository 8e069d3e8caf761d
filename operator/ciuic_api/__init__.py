"""What the operator, the agent, the trainer and the command line tool agree on.

Pure: no clock, no I/O, no Kubernetes client. Everything may import it; it imports none of the other packages.
"""

GROUP = "ciuic.io"
VERSION = "v1alpha1"
KIND = "DeepSeekJob"
PLURAL = "deepseekjobs"
API_VERSION = f"{GROUP}/{VERSION}"
