"""A local web page about jobs, games and accounts: read-only, on the loopback interface, made by the server.

Nothing here imports accounts or signers, so that no key is ever near it. What comes from the chain is hostile: it is
read in bounded amounts (`chain_reader`), turned into words (`words`, `showing`) and escaped by the templates.
"""
