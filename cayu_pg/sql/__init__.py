"""How each noun of cayu_pg is stored: functions that take a Connection and return data."""
