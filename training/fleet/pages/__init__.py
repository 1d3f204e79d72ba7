"""The dashboard's pages: from the receiver's views to HTML. No HTTP, no SQL, no rule of its own."""
