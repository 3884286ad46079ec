"""`python -m conch.server.frontends.processes <requests fd>`: the process that frontend processes are forked from."""

from conch.server.frontends.processes.process import main

if __name__ == "__main__":
    main()
