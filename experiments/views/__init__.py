"""How people see results, recipes, methods and settings: tables, figures, notebooks and progress bars."""
