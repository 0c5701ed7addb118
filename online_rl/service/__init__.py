"""How the parts become one running service: broker, actors, Serve applications, supervision."""
