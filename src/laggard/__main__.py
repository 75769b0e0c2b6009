from laggard.cli import main

raise SystemExit(main())
