"""Generated from proto/kvasir/v1 by ./generate: do not edit."""
