"""torchft's lighthouse, for an interpreter that has it on its path and no command for it."""

from torchft._torchft import lighthouse_main

lighthouse_main()
