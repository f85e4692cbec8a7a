import driver.starting
from driver.cli import main

driver.starting.done()

if __name__ == "__main__":
    main()
