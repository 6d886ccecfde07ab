"""Writes a JUnit file for a lane that cannot run here: skipped.py FILE REASON."""

import sys
import xml.etree.ElementTree as ElementTree

suite = ElementTree.Element("testsuite", name="skipped")
case = ElementTree.SubElement(suite, "testcase", classname="lane", name="all")
ElementTree.SubElement(case, "skipped", message=" ".join(sys.argv[2].split()))
ElementTree.ElementTree(suite).write(sys.argv[1], encoding="utf-8")
