"""`python -m app`: the same as the `mmprep` command."""

from app.cli import main

raise SystemExit(main())
