"""`python -m lorad`."""

from lorad.cli import main

raise SystemExit(main())
