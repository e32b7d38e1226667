"""The dashboard's expressions as recording rules, so that promtool says whether each is one.

    python3 tests/deploy/dashboard_rules.py deploy/grafana/glim.json >rules.json && promtool check rules rules.json
"""

import json
import sys

# What Grafana puts in.
VARIABLES = {"$__rate_interval": "5m", "$instance": ".*"}


def expressions(dashboard):
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield target["expr"]
    for annotation in dashboard["annotations"]["list"]:
        yield annotation["expr"]


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        dashboard = json.load(file)
    rules = []
    for number, expression in enumerate(expressions(dashboard)):
        for name, value in VARIABLES.items():
            expression = expression.replace(name, value)
        if "$" in expression:
            sys.exit(f"a variable that is not known: {expression}")
        rules.append({"record": f"dashboard:{number}", "expr": expression})
    # JSON is YAML.
    json.dump({"groups": [{"name": "dashboard", "rules": rules}]}, sys.stdout)


if __name__ == "__main__":
    main()
