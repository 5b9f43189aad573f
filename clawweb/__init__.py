"""Everything with a URL, a table or a queue. The only Django package."""
