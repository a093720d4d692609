"""The README's picture of a report, as headless Chromium shows it.

`python docs/pictures/report.py REPORT.html` writes `docs/pictures/report.png`. The
README's run tells libraries by their docstrings: `bert-keras demo` writes the files,
and `bert-keras finetune --task text --train demo/text/train.tsv --dev demo/text/dev.tsv
--init bert --output_dir which_library --set max_seq_length=64` tunes the small model of
quick start 1 on them.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

PICTURE = Path(__file__).with_suffix(".png")
WIDTH, HEIGHT = 1200, 1830

if __name__ == "__main__":
    page = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as profile:
        command = ["chromium", "--headless=new", "--no-sandbox", "--hide-scrollbars"]
        command += [f"--user-data-dir={profile}", f"--screenshot={PICTURE}"]
        command += [f"--window-size={WIDTH},{HEIGHT}", page.as_uri()]
        subprocess.run(command, check=True)
