//go:build gc && !purego

#include "textflag.h"

// PREFETCHW (AX), for which Go's assembler has no name. AMD's 64-bit processors have
// it, and Intel's since 2014. Older ones take it for nothing, back to 2008; for those
// from before there is the build tag purego.
#define PREFETCHW BYTE $0x0F; BYTE $0x0D; BYTE $0x08

// func prefetch(p, q, r unsafe.Pointer)
TEXT ·prefetch(SB), NOSPLIT, $0-24
	MOVQ p+0(FP), AX
	PREFETCHW
	MOVQ q+8(FP), AX
	PREFETCHW
	MOVQ r+16(FP), AX
	PREFETCHW
	RET
