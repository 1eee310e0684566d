"""The paper's statements as functions that compute both sides and check the premises."""
