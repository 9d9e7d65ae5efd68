"""Exceptions for arguments of other libraries' functions that this one does not serve."""


def refuse(function: str, given: str, allowed: str, fix: str):
    raise NotImplementedError(f"{function}: {given}.\n  Allowed: {allowed}.\n  Fix: {fix}.")


def refuse_given(function: str, **arguments) -> None:
    """Refuses the first argument that is not None."""
    for name, value in arguments.items():
        if value is not None:
            refuse(function, f"{name} is given, and is not supported yet", f"{name}=None", f"leave {name} out")


def refuse_dropout(function: str, dropout_p: float) -> None:
    if dropout_p != 0.0:
        refuse(function, f"dropout_p is {dropout_p}, and there is no dropout", "0.0",
               "pass 0.0, as in evaluation")
