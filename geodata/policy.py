"""May these bytes go there? A pure decision, and the gate that writes it down first.

The first rules are the strict core: what has no tag is denied; metadata may travel; unclassified
data stay in their own store; bytes may be checked against their digests in the place where they
lie; a shard may go to and be read in its home region; non-personal and anonymised data may go
anywhere; everything else is denied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from geodata.audit import AuditLog
from geodata.errors import PolicyDenied
from geodata.tags import Tag

Action = Literal["read", "write", "copy", "verify", "export", "delete"]
FREE = frozenset({"NonPersonalData", "AnonymisedData"})


@dataclass(frozen=True, slots=True)
class Movement:
    """An action on tagged data: bytes of region `source` become available in region `target`.

    `subject` says what is moved (dataset, shard), `records` how many, both for the audit only.
    """

    action: Action
    tag: Tag | None
    source: str
    target: str
    purpose: str
    subject: str = ""
    records: int | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What the policy says, by which rule, and what would change it."""

    allowed: bool
    rule: str
    hint: str | None = None


class Policy(Protocol):
    """A pure function from movements to decisions."""

    def decide(self, movement: Movement) -> Decision:
        """Return the decision; no side effects."""


class HomePolicy:
    """Deny by default; see the module docstring for the rules, in their order."""

    def decide(self, movement: Movement) -> Decision:
        """Return the decision of the first rule that matches."""
        tag = movement.tag
        if tag is None:
            return Decision(False, "untagged", "Classify it with geodata shard")
        if tag.kind == "metadata":
            return Decision(True, "metadata")
        if tag.kind == "unclassified":
            if movement.source == movement.target == tag.region:
                return Decision(True, "own-store")
            return Decision(False, "unclassified", "Classify it with geodata shard")
        if movement.action == "verify":
            return Decision(True, "in-place")
        if tag.data_category in FREE:
            return Decision(True, "non-personal")
        if movement.target == tag.region:
            return Decision(True, "home")
        return Decision(False, "home-only", f"Use it in {tag.region}, or train federated")


class Gate:
    """Checks movements against a policy and writes each decision to the audit log first."""

    def __init__(self, policy: Policy, audit: AuditLog):
        self._policy = policy
        self._audit = audit

    def decide(self, movement: Movement) -> Decision:
        """Return the decision without acting on it; nothing is written."""
        return self._policy.decide(movement)

    def record(self, movement: Movement) -> Decision:
        """Return the decision, written to the log but not enforced: for what is left out."""
        decision = self._policy.decide(movement)
        self._audit.append(_event(movement, decision))
        return decision

    def note(self, event: str, **facts: str | None) -> None:
        """Write a fact about the process to the log."""
        self._audit.append({"event": event, **facts})

    def check(self, movement: Movement) -> Decision:
        """Return the decision that allows the movement; PolicyDenied or AuditError otherwise."""
        decision = self._policy.decide(movement)
        self._audit.append(_event(movement, decision), sync=not decision.allowed)
        if not decision.allowed:
            raise PolicyDenied(
                f"{movement.action} from {movement.source} to {movement.target} denied by rule "
                f"{decision.rule}",
                hint=decision.hint,
                shard=movement.subject or None,
            )
        return decision


def _event(movement: Movement, decision: Decision) -> dict[str, Any]:
    event: dict[str, Any] = {
        "event": "decision",
        "action": movement.action,
        "source": movement.source,
        "target": movement.target,
        "purpose": movement.purpose,
        "subject": movement.subject,
        "tag": movement.tag.to_json() if movement.tag else None,
        "allowed": decision.allowed,
        "rule": decision.rule,
    }
    return event if movement.records is None else {**event, "records": movement.records}
