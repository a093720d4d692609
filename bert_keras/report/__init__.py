"""`bert-keras report`: what a run did, as pictures and one page."""
