"""The dashboard's pages: from the receiver's views to HTML. The pages contain no HTTP, no SQL and no rules."""
