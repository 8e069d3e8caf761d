"""What stops a rank with one sentence instead of a traceback. Caught in __main__ only."""


class TrainerError(Exception):
    """The sentence names what is wrong and what to change."""


class ConfigurationError(TrainerError):
    """Configuration, data and accelerator do not fit together."""


class RestoreError(TrainerError):
    """The checkpoint is not of this rank, world, model or data, or did not come back whole."""


class NonFiniteError(TrainerError):
    """Loss or gradient was not finite too many steps in a row."""


class DisagreementError(TrainerError):
    """Ranks hold different values of something that they must hold alike."""
