"""Tables that measurements write into pages in docs."""

import datetime
import re


def table(rows):
    """A table in Markdown; the first row has the names of columns."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def write(page, name, text, source=None):
    """Replaces what `page` has between `<!-- name -->` and `<!-- end -->` by `text`, the command that measured it, and the date.

    The date is that of the file `source` with the results, or else today.
    """
    date = datetime.date.fromtimestamp(source.stat().st_mtime) if source else datetime.date.today()
    made = f"Measured with `benches/run.py {name}` on {date}."
    marked = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
    replaced, count = re.subn(marked, lambda marks: f"{marks[1]}{text.strip()}\n\n{made}\n{marks[2]}", page.read_text(), flags=re.DOTALL)
    if count != 1:
        raise SystemExit(f"error: `{page}` needs one part `<!-- {name} -->`, but has {count}")
    page.write_text(replaced)
