"""Between text and the policy's tokens: thoughts, answers, the ends of turns."""
