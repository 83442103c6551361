package idemamqp

// Watches is how many channels the source keeps an eye on.
func (s *Source) Watches() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.watches)
}
