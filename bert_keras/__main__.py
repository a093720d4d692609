"""`python -m bert_keras`: the command line where its script is not on the path."""

from bert_keras.commands import main as cli

if __name__ == "__main__":
    cli.entry_point()
