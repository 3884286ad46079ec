"""`conch check`: what is wrong with a model repository, found without starting it. One module a family of rules."""
