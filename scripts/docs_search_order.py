"""A hook of MkDocs: which pages a search brings first. Pages for users come before what the project says of itself.

scripts/docs_search_check.py has searches, and the page that each should find first.
"""

# By the beginning of a page's path. If several fit, the last one counts.
BOOST = {
    "getting_started.md": 3,
    "tutorials/": 2,
    "howto/": 2,
    "ddp.md": 2,
    "lockrun.md": 4,
    "lockrun/ends.md": 3,
    "data.md": 2,
    "checkpoints.md": 3,
    "faq.md": 0.5,
    "api/": 0.1,
    "reference/flags.md": 0.5,
    "performance": 0.5,
    "architecture": 0.3,
    "development": 0.3,
    "project/": 0.3,
}


def on_page_markdown(markdown, page, **_):
    for start, boost in BOOST.items():
        if page.file.src_uri.startswith(start):
            page.meta["search"] = {"boost": boost}
    return markdown
