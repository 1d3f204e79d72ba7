"""Real processes, real files and real sockets under fire: what ``make torture`` runs in full and the tests in small."""
