"""Questions answered on columns and postings: which rows match, how they score, and which come first."""
