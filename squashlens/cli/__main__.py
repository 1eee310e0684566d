from squashlens.cli import main

main()
