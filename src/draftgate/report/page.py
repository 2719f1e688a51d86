"""placeholder until the page lands"""

import json
from pathlib import Path


def write_report(result, path):
    path.write_text(json.dumps(result))
