"""``discoseg annotate``: a local web server on one dataset, and the page it serves (``static/``).

Browser → :mod:`guard` (token, host, size of bodies) → :mod:`app` (routes) → :mod:`annotator` (what an action does) →
:mod:`store` (revisions, files). Needs the extra ``web``, but for what lies below
the routes.
"""
