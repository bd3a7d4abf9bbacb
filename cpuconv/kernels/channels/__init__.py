"""Operations that cross lanes of channel blocks, or need statistics of channel planes."""
