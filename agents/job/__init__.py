"""The job agent: puts the ranks' records together and knows what is slow, and since when."""
