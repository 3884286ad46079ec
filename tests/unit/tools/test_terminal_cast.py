"""The recorded terminal of the README is of the commands that its script has."""

import html

from tools.terminal_cast import COMMANDS, PICTURE, Line, draw


def test_the_picture_shows_the_commands_in_order() -> None:
    text = html.unescape(PICTURE.read_text("utf-8")).partition("</style>")[2]
    places = [text.index(f"$ {command}<") for command in COMMANDS]
    assert places == sorted(places)


def test_lines_appear_when_they_were_printed() -> None:
    picture = draw([Line(0.5, "$ a <b>", is_command=True), Line(2.0, "printed")])
    assert "$ a &lt;b&gt;" in picture
    assert 'keyTimes="0;0.2500;0.2500;1"' in picture
