"""A few shapes as SVG, readable on a dark and a light page."""

from __future__ import annotations

from xml.sax.saxutils import escape

_LIGHT = (
    "--ink:#1f2937;--soft:#64748b;--line:#94a3b8;--card:#f8fafc;--edge:#cbd5e1;--lane:#f1f5f9;"
    "--good:#0b6e4f;--good-soft:#d1fae5;--warn:#b45309;--warn-soft:#fef3c7;--info:#1d4ed8;--info-soft:#dbeafe"
)
_DARK = (
    "--ink:#e5e7eb;--soft:#94a3b8;--line:#64748b;--card:#1b2330;--edge:#3b475a;--lane:#161d28;"
    "--good:#4cc9a0;--good-soft:#123b31;--warn:#f0b429;--warn-soft:#3d2f10;--info:#7aa7ff;--info-soft:#1a2c52"
)
_FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif"
_STYLE = (
    f"svg.drawing{{{_LIGHT}}}@media (prefers-color-scheme:dark){{svg.drawing{{{_DARK}}}}}"
    f"svg.drawing text{{font-family:{_FONT};font-size:13px;fill:var(--ink)}}"
    "svg.drawing .soft{fill:var(--soft);font-size:12px}svg.drawing .bold{font-weight:600}"
    "svg.drawing .mono{font-family:ui-monospace,SFMono-Regular,Menlo,'DejaVu Sans Mono',monospace;font-size:12px}"
)


class Drawing:
    """Collects shapes; :meth:`svg` returns the picture.  Lengths are pixels at its full size."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self._parts: list[str] = []

    def add(self, part: str) -> None:
        """Add raw SVG."""
        self._parts.append(part)

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start", colour: str = "") -> None:
        """Write one line whose base line is at *y*; *kind* is of soft, bold, mono."""
        style = f' style="fill:var(--{colour})"' if colour else ""
        chosen = f' class="{kind}"' if kind else ""
        self.add(f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{chosen}{style}>{escape(text)}</text>')

    def box(self, x: float, y: float, w: float, h: float, *lines: str, colour: str = "", dashed: bool = False) -> None:
        """Draw a card with a bold first line and soft others; *colour* is of good, warn, info."""
        fill, edge = (f"{colour}-soft", colour) if colour else ("card", "edge")
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.add(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="9" stroke-width="1.4"{dash} '
            f'style="fill:var(--{fill});stroke:var(--{edge})"/>'
        )
        at = y + h / 2 - (len(lines) - 1) * 8.5 + 4.5
        for number, line in enumerate(lines):
            self.text(x + w / 2, at + number * 17, line, "soft" if number else "bold", "middle")

    def lane(self, x: float, y: float, w: float, h: float, label: str = "") -> None:
        """Draw a quiet area with its name at the upper left."""
        self.add(f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="12" style="fill:var(--lane)"/>')
        if label:
            self.text(x + 12, y + 19, label, "soft")

    def path(self, data: str, colour: str = "line", width: float = 1.6, dashed: bool = False, head: str = "") -> None:
        """Draw a line; *head* is "end", "start" or both."""
        marks = "".join(f' marker-{end}="url(#{self._mark(colour)})"' for end in head.split())
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.add(f'<path d="{data}" fill="none" stroke-width="{width:g}"{dash}{marks} style="stroke:var(--{colour})"/>')

    def arrow(
        self, x1: float, y1: float, x2: float, y2: float, label: str = "", colour: str = "line", dashed: bool = False
    ) -> None:
        """Draw an arrow with a label beside its middle."""
        self.path(f"M{x1:g} {y1:g}L{x2:g} {y2:g}", colour, dashed=dashed, head="end")
        if label and x1 == x2:
            self.text(x1 + 8, (y1 + y2) / 2 + 4, label, "soft")
        elif label:
            self.text((x1 + x2) / 2, (y1 + y2) / 2 - 6, label, "soft", "middle")

    def svg(self) -> str:
        """Return the picture."""
        heads = "".join(
            f'<marker id="{self._mark(colour)}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" style="fill:var(--{colour})"/></marker>'
            for colour in ("line", "good", "warn", "info")
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="drawing" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" role="img" aria-label="{escape(self.title)}">'
            f"<style>{_STYLE}</style><defs>{heads}</defs>\n" + "\n".join(self._parts) + "\n</svg>\n"
        )

    def _mark(self, colour: str) -> str:
        return f"{''.join(c for c in self.title.lower() if c.isalpha())[:24]}-{colour}"
