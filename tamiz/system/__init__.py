"""The machine: its cores, its memory and its measured profile."""
