"""A hook of MkDocs: pages fit a window of 1280 pixels, and names are not broken inside. docs/assets/extra.css has the rules.

Code in the cell of a table breaks between its words, and a C++ name behind "::"; on a phone also behind "_". Elsewhere a flag does
not break at its dashes. Code of the API reference comes from comments in headers, which are wider than the site: its lines wrap.
"""

import re

LONGEST_IN_ONE_LINE = 24  # characters
LONGEST_NAME = 20
LONGEST_WORD = 30
TITLE = re.compile(r"(<h1[^>]*>)([^<]*)")
CELL = re.compile(r"<td[^>]*>.*?</td>", re.S)
CODE = re.compile(r"<code>([^<]*)</code>")
INLINE = re.compile(r"(?<!<span></span>)<code>([^<]*-[^<]*)</code>")
WORD = re.compile(r"[^\s<>]{%d,}" % (LONGEST_WORD + 1))
FLAG = re.compile(r"(?<!\S)--?\w[^\s<>]{,%d}(?!\S)" % (LONGEST_IN_ONE_LINE - 2))


def whole(flag):
    """A flag does not break; on a phone it may, but not behind its first dashes."""
    return re.sub(r"^--?[^\W_]+", r'<span class="word"><span class="start">\g<0></span>', flag[0]) + "</span>"


def divided(code):
    text = code[1].replace(r"\|", "|")  # GitHub wants the backslash in a table
    if "::" in text and len(text) > LONGEST_NAME or " " in text and len(text) > LONGEST_IN_ONE_LINE:
        words = [re.sub(r"(?<=::)(?=.)|(?<=&lt;)", "</span><wbr><span>", word) if "::" in word else word for word in text.split(" ")]
        return '<code class="words">' + " ".join(f"<span>{word}</span>" for word in words) + "</code>"
    return f"<code>{re.sub(r'(?<=_)(?=[^_])', '<wbr>', FLAG.sub(whole, text))}</code>"


def fitted(cell):
    parts = re.split(r"(<code.*?</code>|<[^>]*>)", cell[0], flags=re.S)
    parts = [part if part.startswith("<") else re.sub(r"(?<=\w)_(?=\w)", '_<wbr class="narrow">', part) for part in parts]
    parts = [piece for part in parts for piece in (re.split(r"(<wbr[^>]*>)", part) if not part.startswith("<") else [part])]
    parts = [part if part.startswith("<") else FLAG.sub(whole, WORD.sub(lambda word: re.sub(r",(?=\w)", ",<wbr>", word[0]), part)) for part in parts]
    return CODE.sub(divided, "".join(parts))


def unbroken(code):
    return "<code>" + FLAG.sub(whole, code[1]) + "</code>"


def on_page_content(html, page, **_):
    if page.file.src_uri.startswith("api/"):
        html = html.replace('class="language-cpp highlight"', 'class="language-cpp highlight wraps"')
        html = TITLE.sub(lambda title: title[1] + re.sub(r"(?<=_)(?=[^_])", "<wbr>", title[2]), html, count=1)
    parts = re.split(r"(<td[^>]*>.*?</td>)", html, flags=re.S)
    return "".join(CELL.sub(fitted, part) if part.startswith("<td") else INLINE.sub(unbroken, part) for part in parts)
