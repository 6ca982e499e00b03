"""``evlog``: one wide event per request, in a canonical envelope."""
