"""The dashboard's pages: from the receiver's views to HTML. It contains no HTTP, no SQL and no rules."""
