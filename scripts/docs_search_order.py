"""A hook of MkDocs: which pages a search brings first. Pages for users come before what the project says of itself."""

BOOST = {
    "getting_started.md": 3, "tutorials/": 2, "howto/": 2, "ddp.md": 2, "lockrun.md": 2,
    "api/": 0.4, "reference/flags.md": 0.5, "performance": 0.5, "architecture": 0.3, "development": 0.3, "project/": 0.3,
}


def on_page_markdown(markdown, page, **_):
    for start, boost in BOOST.items():
        if page.file.src_uri.startswith(start):
            page.meta["search"] = {"boost": boost}
    return markdown
