"""The README's picture of a search page, as headless Chromium shows it.

`python docs/pictures/serve.py MODEL` indexes the paragraphs of `docs/` by a model for
vectors of texts, such as the one of quick start 1, serves the index, and writes
`docs/pictures/serve.png`.
"""

import re
import subprocess
import sys
import tempfile
import urllib.parse
from pathlib import Path

from PIL import Image

PICTURE = Path(__file__).with_suffix(".png")
PAGES = Path(__file__).parents[1].glob("*.md")
WIDTH, HEIGHT = 900, 712
QUESTION = "how do I continue a training that was killed?"
PROGRAM = [sys.executable, "-m", "bert_keras"]

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        for page in PAGES:
            # A paragraph is a line; commands, tables and headings are left out.
            text = re.sub(
                r"```.*?```|<!--.*?-->|[*`]", "", page.read_text(), flags=re.S
            )
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
            parts = (" ".join(part.split()) for part in re.split(r"\n\n|\n- ", text))
            lines = [
                part.lstrip("- ") for part in parts if part[:1] not in ("", "|", "#")
            ]
            (folder / f"{page.stem}.txt").write_text("\n".join(lines))
        made = ["--model", sys.argv[1], "--output", str(folder / "documentation")]
        command = [*PROGRAM, "index", "--input", f"{folder}/*.txt", *made]
        subprocess.run(command, check=True)
        command = [*PROGRAM, "serve", "--index", str(folder / "documentation")]
        with subprocess.Popen(
            [*command, "--port", "0"], stdout=subprocess.PIPE, text=True
        ) as server:
            query = urllib.parse.urlencode({"question": QUESTION, "top": 5})
            line = server.stdout.readline()  # pyright: ignore
            url = f"{line.strip()}?{query}"
            browser = [
                "chromium",
                "--headless=new",
                "--no-sandbox",
                "--hide-scrollbars",
            ]
            browser += [f"--user-data-dir={folder}/profile", f"--screenshot={PICTURE}"]
            browser += [f"--window-size={WIDTH},{HEIGHT}", "--virtual-time-budget=5000"]
            subprocess.run([*browser, url], check=True)
            server.terminate()
    # 64 colours are enough for text, in a third of the bytes.
    Image.open(PICTURE).convert("RGB").quantize(64).save(PICTURE, optimize=True)
