"""What can this machine measure?"""
