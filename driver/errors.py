"""Everything that ends a command early, as one tree with an exit code per branch.

    DriverError
    ├── UsageError          2   bad usage, unreadable or incomparable input
    │   ├── PresetError         a preset file or name
    │   ├── ArmError            an arm's name or options
    │   ├── CorpusError         a corpus file
    │   ├── CaseError           a case or result file
    │   ├── BudgetError         too little time for the least run
    │   └── ReceiptError        a receipt that cannot be read
    ├── LackError           3   this environment lacks something; says how to get it
    │   ├── BrowserMissing
    │   └── Unsupported         an arm or option that this machine or browser cannot honour
    ├── RunError            4   the run itself failed
    │   ├── BuildError          the compiler refused
    │   ├── SlotError           a page crashed, hung, lost its device or broke the protocol
    │   └── ParityError         an arm disagrees with the reference before the first slot (exit 1)
    └── Interrupted       130   Ctrl-C or a termination signal

A message says what was wrong, the value, and what to do next; it is shown without a traceback.
"""


class DriverError(Exception):
    """Base of all errors meant for people."""

    exit_code = 4


class UsageError(DriverError):
    """The command or one of its inputs is wrong."""

    exit_code = 2


class PresetError(UsageError):
    """A preset's name or file is wrong."""


class ArmError(UsageError):
    """An arm's name or one of its options is wrong."""


class CorpusError(UsageError):
    """A corpus cannot be read or is too short."""


class CaseError(UsageError):
    """A case file cannot be read or does not hold together."""


class BudgetError(UsageError):
    """The budget is too short for even the least run."""


class ReceiptError(UsageError):
    """A receipt cannot be read."""


class LackError(DriverError):
    """The environment lacks something that the command needs."""

    exit_code = 3


class BrowserMissing(LackError):
    """No usable browser was found, and none could be installed."""


class Unsupported(LackError):
    """This machine or browser cannot honour an arm or one of its options."""


class RunError(DriverError):
    """The run itself failed."""

    exit_code = 4


class BuildError(RunError):
    """A kernel did not compile."""


class SlotError(RunError):
    """A page crashed, hung, lost its device or broke the protocol."""


class ParityError(RunError):
    """An arm disagrees with the reference."""

    exit_code = 1


class Interrupted(DriverError):
    """A person or the system asked the command to stop."""

    exit_code = 130
