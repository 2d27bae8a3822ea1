"""A session as a document for people: HTML, Markdown, plain text."""
