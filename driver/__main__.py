from driver.cli import main

main()
