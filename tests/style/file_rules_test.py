#!/usr/bin/env python3
"""The file rules find every kind of violation, and accept a tree that keeps them."""
import pathlib
import tempfile
import unittest

import file_rules

GOOD = "// This is a part.\n#pragma once\n"
EXPORTED = "\n#pragma GCC visibility push(default)\n\nnamespace a {\n}  // namespace a\n\n#pragma GCC visibility pop\n"


def violations_in(files):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        return list(file_rules.violations(root))


class FileRules(unittest.TestCase):
    def assert_one_violation(self, files, words):
        found = violations_in(files)
        self.assertEqual(len(found), 1, found)
        self.assertIn(words, found[0])

    def test_a_tree_that_keeps_the_rules_has_no_violation(self):
        self.assertEqual(violations_in({
            "meson.build": "project('tessera', 'cpp',\n  version: '1.2.3',\n)\n",
            "CHANGELOG.md": "## 1.2.3\n",
            "include/tessera/version.hpp": GOOD + '// "1.2.3"\n',
            "include/tessera/plan/a.hpp": GOOD + EXPORTED,
            "include/tessera/tessera.hpp":
                GOOD + '#include "tessera/version.hpp"\n#include "tessera/plan/a.hpp"\n',
            "src/plan/a.cpp": "// This is a part.\nint a;\n",
            "scripts/b": '#!/bin/sh\n# Does b.\ncd "$root/work/x"\n',
            "tests/c.py": '"""What this is."""\n',
        }), [])

    def test_a_file_without_a_first_comment_is_found(self):
        self.assert_one_violation({"src/a.cpp": "int a;\n"}, "open with a comment")
        self.assert_one_violation({"tests/a.py": "import sys\n"}, "open with a docstring")
        self.assert_one_violation({"scripts/a": "#!/bin/sh\nset -e\n"}, "second line")

    def test_a_header_without_a_guard_is_found(self):
        self.assert_one_violation({"src/a.hpp": "// This is a part.\n"}, "#pragma once")

    def test_a_public_header_that_exports_nothing_is_found(self):
        for folder in ["include", "nn/include", "vision/include", "torch/include"]:
            path = f"{folder}/tessera/a.hpp"
            umbrella = {"include/tessera/tessera.hpp": GOOD + '#include "tessera/a.hpp"\n'}
            self.assert_one_violation({**umbrella, path: GOOD + "\nnamespace a {\n}\n"}, "visibility push")
            self.assert_one_violation({**umbrella, path: GOOD + EXPORTED.replace("pop", "push(default)")}, "visibility pop")

    def test_blanks_and_missing_newlines_are_found(self):
        self.assert_one_violation({"src/a.cpp": "// A.\n\tint a;\n"}, "src/a.cpp:2: a tab")
        self.assert_one_violation({"src/a.cpp": "// A.\nint a; \n"}, "blanks at the end")
        self.assert_one_violation({"src/a.cpp": "// A.\nint a;"}, "no newline")

    def test_notes_to_self_are_found(self):
        for word in ["TODO", "FIXME", "XXX", "HACK"]:
            self.assert_one_violation({"src/a.cpp": f"// A.\n// {word}: later\n"}, word)

    def test_comments_that_begin_without_their_subject_are_found(self):
        for word in ["Of", "By", "As", "What", "Likewise"]:
            self.assert_one_violation({"src/a.cpp": f"// A.\n  // {word} b.\n"}, f'begins with "{word}"')
            self.assert_one_violation({"src/a.hpp": GOOD + f"int a;  // {word} b\n"}, f'begins with "{word}"')
            self.assert_one_violation({"tests/a.py": f'"""A."""\n# {word} b.\n'}, f'begins with "{word}"')
        self.assertEqual(violations_in({"src/a.cpp": "// A.\n// Ashes. Of b.\n", "docs/a.md": "# What a is\n"}), [])

    def test_paths_of_one_machine_are_found(self):
        for path in ["/work/main", "/root/.cache", "/home/me"]:
            self.assert_one_violation({"docs/a.md": f"see {path}\n"}, "path of one machine")

    def test_a_header_that_the_umbrella_lacks_is_found(self):
        self.assert_one_violation({"include/tessera/tessera.hpp": GOOD, "include/tessera/plan/a.hpp": GOOD},
                                  "lacks tessera/plan/a.hpp")

    def test_a_version_that_disagrees_is_found(self):
        files = {"meson.build": "project('tessera', 'cpp',\n  version: '1.2.3',\n)\n", "CHANGELOG.md": "## 1.2.2\n",
                 "include/tessera/version.hpp": GOOD + '// "1.2.2"\n'}
        self.assertEqual(len(violations_in(files)), 2)


if __name__ == "__main__":
    unittest.main()
