"""What a chat template expects of its messages, read from its syntax tree: text or parts, and which roles. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from jinja2 import nodes


@dataclass(frozen=True, slots=True)
class Traits:
    """`parts`: the template goes through lists of content parts; `text`: it takes a content that is a string."""

    parts: bool = False
    text: bool = True
    developer: bool = False
    """It knows the role `developer`."""


def traits_of(tree: nodes.Template) -> Traits:
    """Read a template's traits.

    A template that loops over a message's content takes parts. It takes text too if it asks whether the content is a
    string; without that question, a string would be gone through character by character.
    """
    names = _content_names(tree)
    parts = any(_is_content(loop.iter, names) for loop in tree.find_all(nodes.For))
    asks = any(test.name == "string" and _is_content(test.node, names) for test in tree.find_all(nodes.Test))
    developer = any(constant.value == "developer" for constant in tree.find_all(nodes.Const))
    return Traits(parts=parts, text=asks or not parts, developer=developer)


def _content_names(tree: nodes.Template) -> set[str]:
    """The variables and macro arguments that hold a message's content, followed from one to the next."""
    macros = {macro.name: [arg.name for arg in macro.args] for macro in tree.find_all(nodes.Macro)}
    names: set[str] = set()
    while True:
        found = {
            assign.target.name
            for assign in tree.find_all(nodes.Assign)
            if isinstance(assign.target, nodes.Name) and _is_content(assign.node, names)
        }
        for call in tree.find_all(nodes.Call):
            if isinstance(call.node, nodes.Name) and call.node.name in macros:
                given = [*zip(macros[call.node.name], call.args, strict=False)]
                given += [(keyword.key, keyword.value) for keyword in call.kwargs]
                found |= {name for name, value in given if _is_content(value, names)}
        if found <= names:
            return names
        names |= found


def _is_content(node: nodes.Node | None, names: set[str]) -> bool:
    """Whether an expression is a message's content: `m.content`, `m['content']`, `m.get('content')`, or made of it."""
    match node:
        case nodes.Getattr(attr="content"):
            return True
        case nodes.Getitem(arg=nodes.Const(value="content")):
            return True
        case nodes.Call(node=nodes.Getattr(attr="get"), args=[nodes.Const(value="content"), *_]):
            return True
        case nodes.Name(name=name):
            return name in names
        case nodes.Filter(node=inner):
            return _is_content(inner, names)
        case nodes.CondExpr(expr1=first, expr2=second) | nodes.Or(left=first, right=second):
            return _is_content(first, names) or _is_content(second, names)
    return False
