"""From folders of runs to tables, pictures and a page."""
